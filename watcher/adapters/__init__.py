"""The edge of the service: each module implements one port on the real world."""
