"""The models that are served, where a request finds an engine, and how it goes on when that one dies."""
