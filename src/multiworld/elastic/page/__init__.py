"""The coordinator's live page: the job in a browser, for Prometheus, and for probes."""
