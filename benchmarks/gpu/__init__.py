"""Measurements that need a CUDA GPU; each script installs nothing."""
