package macnode

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/txn"
)

// IndexClaim is the kind of index key that maps a claim of a witness to the names of the MacNodes
// in quarantine for lost history that have it. Their names are separated by commas.
const IndexClaim = "witness-claim"

// claims returns what only one Mac can serve, according to a witness.
func claims(w *rack.MacNodeWitness) []string {
	if w.LeaseRef == nil {
		return nil
	}
	namespace := w.LeaseRef.Namespace
	list := []string{"lease " + namespace + "/" + w.LeaseRef.Name, "UID " + string(w.LeaseRef.UID)}
	for _, i := range w.Instances {
		list = append(list, "instance "+namespace+"/"+i.Name, "UID "+string(i.UID), "machine ID "+i.MachineID, "MAC address "+i.MACAddress)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func claimID(claim string) string {
	sum := sha256.Sum256([]byte(claim))
	return hex.EncodeToString(sum[:])
}

func claimants(ctx context.Context, tx *txn.Tx, claim string) ([]string, error) {
	value, exists, err := tx.GetKey(ctx, IndexClaim, claimID(claim))
	if err != nil || !exists {
		return nil, err
	}
	return strings.Split(string(value), ","), nil
}

func addClaims(ctx context.Context, tx *txn.Tx, node *rack.MacNode) error {
	for _, claim := range claims(&node.Status.Ledger.Loss.Witness) {
		names, err := claimants(ctx, tx, claim)
		if err != nil {
			return err
		}
		if slices.Contains(names, node.Name) {
			continue
		}
		if err := tx.PutKey(IndexClaim, claimID(claim), []byte(strings.Join(append(names, node.Name), ","))); err != nil {
			return err
		}
	}
	return nil
}

func removeClaims(ctx context.Context, tx *txn.Tx, node *rack.MacNode) error {
	for _, claim := range claims(&node.Status.Ledger.Loss.Witness) {
		names, err := claimants(ctx, tx, claim)
		if err != nil {
			return err
		}
		if !slices.Contains(names, node.Name) {
			continue
		}
		names = slices.DeleteFunc(names, func(name string) bool { return name == node.Name })
		if len(names) == 0 {
			err = tx.DeleteKey(IndexClaim, claimID(claim))
		} else {
			err = tx.PutKey(IndexClaim, claimID(claim), []byte(strings.Join(names, ",")))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ConflictingClaim returns a claim of the witness of a Mac that the witness of another Mac has too,
// and the name of the other. It ignores the Macs in wrong.
func ConflictingClaim(ctx context.Context, tx *txn.Tx, node *rack.MacNode, wrong []string) (claim, other string, err error) {
	for _, claim := range claims(&node.Status.Ledger.Loss.Witness) {
		names, err := claimants(ctx, tx, claim)
		if err != nil {
			return "", "", err
		}
		for _, name := range names {
			if name == node.Name || slices.Contains(wrong, name) {
				continue
			}
			// A server of an earlier version may have dropped the loss and left the key.
			rival := &rack.MacNode{}
			if err := tx.Get(ctx, Resource, "", name, rival); apierrors.IsNotFound(err) {
				continue
			} else if err != nil {
				return "", "", err
			}
			if loss := ledgerOf(rival).Loss; loss != nil && slices.Contains(claims(&loss.Witness), claim) {
				return claim, name, nil
			}
		}
	}
	return "", "", nil
}
