"""Two commits beside each other: is the newer one as fast?"""
