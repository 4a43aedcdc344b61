"""Programs whose model calls the proxy records: their input files, their calls, how they end, and the files they leave."""
