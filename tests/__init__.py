"""All tests of multiworld, by how much they need: plain Python, processes, network namespaces, a GPU."""
