"""What the launcher promises, measured beside torchrun: ``python -m benchmarks.elastic --help`` lists the lines."""
