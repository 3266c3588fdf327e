"""`kdsl profile`: what Nsight Compute counts of a launch, beside what the simulator counts."""
