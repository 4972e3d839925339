"""What the agent learns of each target and card over days: usual miss ratios, and how long steps used to take."""
