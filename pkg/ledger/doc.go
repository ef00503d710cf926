// Package ledger writes and verifies AuditRecords, the proof of compliance with the three rules.
//
// # Chains
//
// The records of a Mac form a chain. Each record has a sequence number, starting at 1 and without
// gaps, the hash of the previous record, and its own hash. Lost, changed, added and forked records
// are therefore detected. A record without a Mac is in the chain of its tenant. The name of a
// record consists of its chain, a dash and the sequence number with 12 digits, so that names sort
// by chain and sequence:
//
//	c07xk1abcd-000000000042     the Mac with serial number C07XK1ABCD
//	tenant-acme-000000000007    the tenant acme, without a Mac
//
// A record is in the namespace of its tenant. Records without a tenant, and records with two
// (CrossTenantRejected), are in macrack-system, so that no tenant can read about another.
//
// The head of a chain (sequence, hash and time of its last record) is stored under an index key,
// which the transaction of the next record compares and replaces. A record therefore cannot be
// lost, duplicated or forked, and the time in a chain never decreases, even if the clocks of the
// servers are wrong.
//
// # The hash
//
// An auditor can check a hash without this code. It is the SHA-256 hash, in lower-case hexadecimal,
// of the record as the API returns it in JSON, without apiVersion, kind, metadata and hash, in
// canonical form: the keys of every object sorted, no white space, strings in UTF-8 with the
// escapes \" \\ \n \t and no others (the JSON Canonicalization Scheme, RFC 8785). Records have no
// other control characters and no fractions. For a record in a file:
//
//	jq -cjS 'del(.apiVersion, .kind, .metadata, .hash)' record.json | sha256sum
//
// In a file written by Export, only apiVersion, kind and the name and namespace in metadata are not
// hashed. ReadFrom accepts only the values that follow from the hashed fields.
//
// The hash covers previousHash and sequence, so the last hash of a chain proves the whole chain.
package ledger
