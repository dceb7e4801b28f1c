"""Our rendezvous for torchrun itself: an agent of ours inside each of torchrun's, which starts nothing itself."""
