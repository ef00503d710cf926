package rejection

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"macrack.io/macrack/pkg/apis/rack"
)

// A Recorder makes the record of a rejection durable, either by itself or folded with identical
// ones.
type Recorder interface {
	Reject(ctx context.Context, record *rack.AuditRecord) error
}

// Check returns err. If err is an Error, its record is durable when Check returns. A dry run is
// recorded only if its refusal reveals that another tenant has leased a Mac.
func Check(ctx context.Context, recorder Recorder, err error, dryRun []string) error {
	var refused *Error
	if !errors.As(err, &refused) || refused.Record == nil {
		return err
	}
	record := refused.Record
	if len(dryRun) > 0 {
		if record.Type != rack.CrossTenantRejected {
			return refused.StatusError
		}
		record.Details.Message += " (a dry run)"
	}
	if recordErr := recorder.Reject(ctx, record); recordErr != nil {
		return apierrors.NewInternalError(fmt.Errorf("%w; in addition, the ledger could not record it: %w", refused.StatusError, recordErr))
	}
	return refused.StatusError
}
