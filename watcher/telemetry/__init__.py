"""What the service says about itself: structured logs, event names, status."""
