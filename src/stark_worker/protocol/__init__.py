"""Messages between host and worker: requests, reports, faults and the folder layout. No torch."""
