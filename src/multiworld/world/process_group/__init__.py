"""A world as PyTorch knows groups: a c10d process group, and meshes of them."""
