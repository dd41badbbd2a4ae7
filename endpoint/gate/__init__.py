"""The server before Ray Serve's proxy: sizes, times, capacity, and requests whose ingress is lost."""
