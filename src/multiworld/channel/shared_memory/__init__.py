"""Memory that the processes of one host share: it carries payloads from one to another, and serves collectives."""
