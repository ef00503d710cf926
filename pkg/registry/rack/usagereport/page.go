package usagereport

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apiserver/pkg/warning"

	"macrack.io/macrack/pkg/apis/rack"
)

// A page is a part of a list: up to limit reports after the last one of the previous page.
type page struct {
	limit  int64  // 0 for no limit
	tenant string // of the last report
	window int    // of the last report; -1 before the first
}

func pageOf(options *metainternalversion.ListOptions) (*page, error) {
	p := &page{limit: options.Limit, window: -1}
	if options.Continue == "" {
		return p, nil
	}
	token, err := base64.RawURLEncoding.DecodeString(options.Continue)
	window, tenant, found := strings.Cut(string(token), "/")
	if err == nil && found {
		p.tenant = tenant
		p.window, err = strconv.Atoi(window)
	}
	if err != nil || !found {
		return nil, apierrors.NewBadRequest("the continue token is invalid; list again without it")
	}
	return p, nil
}

// follows reports whether a report comes after the previous page.
func (p *page) follows(tenant string, window int) bool {
	return tenant > p.tenant || tenant == p.tenant && window > p.window
}

func (p *page) isFull(list *rack.UsageReportList) bool {
	return p.limit > 0 && int64(len(list.Items)) >= p.limit
}

func (p *page) add(list *rack.UsageReportList, report rack.UsageReport, tenant string, window int) {
	list.Items = append(list.Items, report)
	p.tenant, p.window = tenant, window
}

// next returns the token of the next page.
func (p *page) next() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d/%s", p.window, p.tenant))
}

func warnUnproven(ctx context.Context, report rack.UsageReport) {
	if n := report.Status.Unproven; n > 0 {
		warning.AddWarning(ctx, "", fmt.Sprintf("the ledger does not prove all use of %q in window %q: unproven leases: %d; status.leases[*].unproven has the causes",
			report.Namespace, report.Name, n))
	}
}
