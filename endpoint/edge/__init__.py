"""What surrounds the application: keys, names of hosts, limits, errors, metrics, the page."""
