"""How a host is written in front of a port. Pure."""


def bracketed(host: str) -> str:
    """Return an IPv6 address in brackets, and any other host as it is."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
