"""The elastic launcher's modules, one file each."""
