// Package rack assembles the storage of the API group rack.macrack.io.
package rack

import (
	"context"

	"k8s.io/apiserver/pkg/registry/rest"

	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/rack/auditrecord"
	"macrack.io/macrack/pkg/registry/rack/compliancereport"
	"macrack.io/macrack/pkg/registry/rack/macnode"
	"macrack.io/macrack/pkg/registry/rack/macnodeclass"
	"macrack.io/macrack/pkg/registry/rack/macnodelease"
	"macrack.io/macrack/pkg/registry/rack/usagereport"
	"macrack.io/macrack/pkg/registry/tenancy"
)

// Storage is the storage of the API group.
type Storage struct {
	MacNodes macnode.Storage
	// Restore is the subresource restore of MacNodes, which spans the API groups.
	Restore           rest.Storage
	MacNodeClasses    macnodeclass.Storage
	MacNodeLeases     macnodelease.Storage
	AuditRecords      *auditrecord.REST
	ComplianceReports *compliancereport.REST
	UsageReports      *usagereport.REST
}

// NewStorage returns the storage of the API group. The function defaultClass returns the class of
// leases without a class, or an empty string.
func NewStorage(options genericstore.Options, filter *tenancy.Filter, defaultClass func(context.Context) string) (Storage, error) {
	nodes, err := macnode.NewStorage(options)
	if err != nil {
		return Storage{}, err
	}
	classes, err := macnodeclass.NewStorage(options, nodes.MacNode)
	if err != nil {
		return Storage{}, err
	}
	leases, err := macnodelease.NewStorage(options, defaultClass, filter.Objects)
	if err != nil {
		return Storage{}, err
	}
	records, err := auditrecord.NewStorage(options, filter.ReadableRecords)
	if err != nil {
		return Storage{}, err
	}
	reporter := auditrecord.NewReporter(options.Backend, options.Clock)
	return Storage{
		MacNodes:          nodes,
		MacNodeClasses:    classes,
		MacNodeLeases:     leases,
		AuditRecords:      records,
		ComplianceReports: compliancereport.NewREST(options.Clock, reporter),
		UsageReports:      usagereport.NewREST(options.Clock, reporter, filter.ReadableUsage),
	}, nil
}

// Resources returns the storage of each resource in the paths of the API group.
func (s Storage) Resources() map[string]rest.Storage {
	return map[string]rest.Storage{
		"macnodes":              s.MacNodes.MacNode,
		"macnodes/status":       s.MacNodes.Status,
		"macnodes/restore":      s.Restore,
		"macnodeclasses":        s.MacNodeClasses.MacNodeClass,
		"macnodeclasses/status": s.MacNodeClasses.Status,
		"macnodeleases":         s.MacNodeLeases.MacNodeLease,
		"macnodeleases/status":  s.MacNodeLeases.Status,
		"macnodeleases/binding": s.MacNodeLeases.Binding,
		"macnodeleases/release": s.MacNodeLeases.Release,
		"auditrecords":          s.AuditRecords,
		"compliancereports":     s.ComplianceReports,
		"usagereports":          s.UsageReports,
	}
}
