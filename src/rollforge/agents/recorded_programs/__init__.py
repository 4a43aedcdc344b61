"""Programs whose model calls the proxy records: the files they start with, the calls, how they end, what they leave behind."""
