"""Where outputs live: records written once, attempts, manifests, leases. Knows no scheduling."""
