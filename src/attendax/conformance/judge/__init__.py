"""The judge: how far off a result may be, whether two differ, and what is found then."""
