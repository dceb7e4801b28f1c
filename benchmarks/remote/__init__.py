"""Benchmarks of remote tensors, beside torch.distributed.rpc, Ray and Monarch."""
