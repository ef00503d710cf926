// Package floor decides when a set of runners leases another Mac, keeps one or gives one up, and on
// which Mac a job runs. It does no I/O, reads no clock and keeps no state.
//
// A leased Mac is paid for until its floor, 24 hours or more after its binding, and by the second
// after it. The rule follows from that:
//
//   - Before its floor, a lease is kept: its hours are paid.
//   - A lease is surplus if demand does not need it, it was idle for KeepIdle, and the forecast for
//     the next four hours does not need it.
//   - From DecideBefore before its floor, a surplus lease is deleted. MacRack keeps its Mac until
//     the floor, so that it ends exactly there; after the floor it ends at once.
//   - While the waiting jobs are unknown, as after a restart, no lease is deleted.
//   - A lease with a job is never deleted, because MacRack stops the machines of a deleted lease.
//   - Another Mac is leased if demand has exceeded the capacity for GrowAfter. It is leased at once
//     if the demand and the forecast both exceed the capacity.
//   - Jobs run on paid leases first, so that the other ones become surplus.
package floor
