"""The nccl channel: NCCL process groups and the order of work on a device."""
