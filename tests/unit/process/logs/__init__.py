"""One file per module; no input or output, milliseconds each."""
