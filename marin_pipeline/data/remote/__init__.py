"""Files from elsewhere: addresses, clients that read them, and the loop that ends with the right bytes or an error."""
