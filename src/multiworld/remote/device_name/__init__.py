"""``"remote:1"`` wherever PyTorch takes a device: asked for by the program, for PyTorch has one such name a process."""
