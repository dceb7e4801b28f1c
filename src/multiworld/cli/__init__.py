"""The command line: one module per command, each with ``main(arguments) -> exit status``."""
