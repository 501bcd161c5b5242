"""Files of the operator: keys, lexicons, certificates; read again when they change."""
