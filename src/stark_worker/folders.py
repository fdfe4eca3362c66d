"""What lies where in a process's own folder. No torch."""

SOURCE_FILE = "candidate.py"
JOB_FILE = "job.json"
EXTENSION_FILE = "extension.json"
LIBRARY_FOLDER = "library"
REQUEST_FILE = "request.json"
REPORT_FILE = "report.json"
OUTPUT_FILE = "output"
