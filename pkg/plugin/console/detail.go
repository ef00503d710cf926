package console

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/fleet"
)

// lastRecords is the number of records of a Mac that the page shows.
const lastRecords = 20

// Detail is what the page shows of a selected Mac, beyond its item.
type Detail struct {
	Hardware   *rackv1alpha1.MacNodeHardware `json:"hardware,omitempty"`
	Images     []rackv1alpha1.CachedImage    `json:"images,omitempty"`
	Conditions []metav1.Condition            `json:"conditions,omitempty"`
	Records    []Record                      `json:"records"`
	// Notices state what is not shown.
	Notices []string `json:"notices,omitempty"`
}

// Record is a record of the ledger in the page.
type Record struct {
	Time    string `json:"time"`
	Type    string `json:"type"`
	Actor   string `json:"actor,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	Message string `json:"message,omitempty"`
	Name    string `json:"name"`
}

// serveMac serves the detail of the Mac in the query.
func (s *Server) serveMac(w http.ResponseWriter, req *http.Request) {
	name := req.URL.Query().Get("name")
	d := Detail{Records: []Record{}}
	tenant, serial := "", ""
	if mac, ok := s.model.get(Macs, name).(*rackv1alpha1.MacNode); ok {
		serial = mac.Spec.SerialNumber
		d.Hardware, d.Images, d.Conditions = mac.Status.Hardware, mac.Status.Images, mac.Status.Conditions
		if mac.Status.LeaseRef != nil {
			tenant = mac.Status.LeaseRef.Namespace
		}
	} else if lease, ok := s.model.find(Leases, hasMac(name)).(*rackv1alpha1.MacNodeLease); ok {
		serial, tenant, d.Conditions = lease.Status.SerialNumber, lease.Namespace, lease.Status.Conditions
	}
	if serial == "" {
		http.Error(w, "no such Mac", http.StatusNotFound)
		return
	}
	if err := s.readRecords(req.Context(), &d, serial, tenant); err != nil {
		d.Notices = append(d.Notices, err.Error())
	}
	serveJSON(w, d)
}

func hasMac(name string) func(runtime.Object) bool {
	return func(obj runtime.Object) bool {
		lease, ok := obj.(*rackv1alpha1.MacNodeLease)
		return ok && name != "" && lease.Status.NodeName == name && lease.Status.ReleasedAt == nil
	}
}

// readRecords adds the last records of a Mac: of all namespaces, or of its tenant.
func (s *Server) readRecords(ctx context.Context, d *Detail, serial, tenant string) error {
	resource := fleet.Records
	opts := metav1.ListOptions{FieldSelector: fields.Set{"chassis.serialNumber": serial}.String()}
	client := s.clients.MacRack.RackV1alpha1()
	list, err := client.AuditRecords(metav1.NamespaceAll).List(ctx, opts)
	if apierrors.IsForbidden(err) && tenant != "" {
		resource = resource.In(tenant)
		list, err = client.AuditRecords(tenant).List(ctx, opts)
	}
	if err != nil {
		return resource.Explain("list", err)
	}
	slices.SortStableFunc(list.Items, func(a, b rackv1alpha1.AuditRecord) int {
		return cmp.Or(b.Time.Compare(a.Time.Time), cmp.Compare(b.Sequence, a.Sequence))
	})
	for _, r := range list.Items[:min(lastRecords, len(list.Items))] {
		d.Records = append(d.Records, Record{
			Time: cmdutil.Time(r.Time.Time), Type: string(r.Type), Actor: r.Actor.Username, Tenant: r.Tenant,
			Message: cmp.Or(r.Details.Message, r.Details.Reason), Name: r.Namespace + "/" + r.Name,
		})
	}
	return nil
}

func serveJSON(w http.ResponseWriter, data any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(data) // the page reports an incomplete answer
}
