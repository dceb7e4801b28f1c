"""What master and nodes tell each other: values, calls, records, messages. Pure."""
