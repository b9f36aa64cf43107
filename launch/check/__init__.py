"""What a server needs, looked at before it is started."""
