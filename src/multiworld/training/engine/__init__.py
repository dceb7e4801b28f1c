"""How a step is computed: gradients in buckets, their reduction over replicas, and its commit."""
