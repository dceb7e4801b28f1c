"""How replicas keep together: every step, or semi-synchronously (LocalSGD, DiLoCo)."""
