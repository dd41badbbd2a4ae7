"""What surrounds the application: keys, names of hosts, errors, metrics, the page."""
