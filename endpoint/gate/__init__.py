"""The server before Ray Serve's proxy: limits of size and time, capacity, and requests whose ingress is lost."""
