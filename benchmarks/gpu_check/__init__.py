"""Is a GPU right, and how fast is it?"""
