// Package ledger keeps and reads the proof that the three rules hold: the AuditRecords.
//
// # Chains
//
// The records of a Mac are a chain. Each has a sequence number, from 1 and without a gap, the hash of the
// record before it, and its own hash, so that a record that is lost, changed, added or forked shows. A
// record that concerns no Mac is in the chain of its tenant. The name of a record is its chain, a dash and
// the sequence number in 12 digits; so names sort by chain and sequence:
//
//	c07xk1abcd-000000000042     the Mac with serial number C07XK1ABCD
//	tenant-acme-000000000007    the tenant acme, without a Mac
//
// A record is in the namespace of its tenant. One that has no tenant, and one that names two
// (CrossTenantRejected), is in macrack-system, so that no tenant reads about another.
//
// The head of a chain (sequence, hash and time of its last record) is an index key that the transaction of
// the next record compares and replaces. A record therefore cannot be lost, doubled or forked, and the time
// in a chain never runs backwards, whatever the clocks of the servers do.
//
// # The hash
//
// An auditor needs none of this code to check a hash. It is the SHA-256, in lower-case hexadecimal, of the
// record as the API returns it in JSON, without apiVersion, kind, metadata and hash, in canonical form: the
// keys of every object sorted, no white space, strings in UTF-8 with the escapes \" \\ \n \t and no others
// (the JSON Canonicalization Scheme, RFC 8785). Records have no other control characters and no fractions.
// For a record in a file:
//
//	jq -cjS 'del(.apiVersion, .kind, .metadata, .hash)' record.json | sha256sum
//
// In a file that Export has written, apiVersion, kind and the name and namespace in metadata are all that is not hashed, and
// ReadFrom accepts no other value of them than the one that follows from the rest.
//
// previousHash and sequence are among what is hashed, so the last hash of a chain vouches for all of it.
package ledger
