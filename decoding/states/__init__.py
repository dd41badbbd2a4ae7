"""What recurrent layers keep of each row: where states are kept, how layers go on from them, and their memory."""
