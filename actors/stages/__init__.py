"""A target that is divided over several actors by layers or by ranks."""
