"""The fastest template for each number of nodes: what partitions there are, and which of them is the best."""
