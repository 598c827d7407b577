"""A broker at a site, with one uplink to a broker in the cloud."""
