"""What an operator sees: a page server, who may read it, event streams, and Prometheus' text format."""
