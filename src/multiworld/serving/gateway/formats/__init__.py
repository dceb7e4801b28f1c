"""The formats of bodies: how a payload becomes JSON, elements, npy or safetensors, and back."""
