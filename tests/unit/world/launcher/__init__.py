"""Of what a worker process and its launcher tell each other."""
