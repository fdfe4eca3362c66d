"""Tables, figures and files from analysed stores; runs nothing."""
